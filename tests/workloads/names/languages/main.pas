{ Calls ma's and mb's Work 300 times, with steps of 1 to 3. Output: a number. }
program main;
uses ma, mb;
var
  number: longword;
  turn: longint;
begin
  number := 1;
  for turn := 1 to 300 do
  begin
    number := ma.Work(1000000, number);
    number := mb.Work(3000000, number);
  end;
  writeln(number);
end.
