--  A package M@ whose Work burns CPU time: @ is a or b.
package M@ is
   type Number is mod 2**64;
   procedure Work (Steps : Number; Value : in out Number);
end M@;
