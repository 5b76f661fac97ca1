/// Calls ma's and mb's work 300 times, with steps of 1 to 3. Output: a number.
import core.stdc.stdio;
static import ma, mb;

void main()
{
    ulong number = 1;
    foreach (turn; 0 .. 300)
    {
        number = ma.work!uint(1_000_000, number);
        number = mb.work!uint(3_000_000, number);
    }
    printf("%lu\n", number);
}
