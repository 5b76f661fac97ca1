/// A module m@ whose work burns CPU time: @ is a or b. Steps -> a number.
module m@;

pragma(inline, false) ulong work(T)(T steps, ulong number)
{
    foreach (i; 0 .. steps)
        number = (number * 31 + i) ^ (number >> 7);
    return number;
}
