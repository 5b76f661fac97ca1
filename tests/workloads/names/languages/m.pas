{ A unit m@ whose Work burns CPU time: @ is a or b. Steps -> a number. }
unit m@;
interface
function Work(steps: longint; number: longword): longword;
implementation
function Work(steps: longint; number: longword): longword;
var
  i: longint;
begin
  for i := 1 to steps do
    number := (number * 31 + longword(i)) xor (number shr 7);
  Work := number;
end;
end.
