--  Calls Ma's and Mb's Work 300 times, with steps of 1 to 3. Output: a number.
with Ada.Text_IO;
with Ma;
with Mb;
procedure Main is
   A : Ma.Number := 1;
   B : Mb.Number := 1;
begin
   for Turn in 1 .. 300 loop
      Ma.Work (1000000, A);
      Mb.Work (3000000, B);
   end loop;
   Ada.Text_IO.Put_Line (A'Image & B'Image);
end Main;
