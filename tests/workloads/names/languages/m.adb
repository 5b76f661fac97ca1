package body M@ is
   procedure Work (Steps : Number; Value : in out Number) is
   begin
      for I in 1 .. Steps loop
         Value := (Value * 31 + I) xor (Value / 128);
      end loop;
   end Work;
end M@;
