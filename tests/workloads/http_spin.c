/* Spins for ever in a function of its own name, and says so once. */
#include <stdio.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void spin(void)
{
    for (unsigned long i = 0; i < 1000000; i++)
        sum += i;
}

int main(void)
{
    puts("spins");
    fflush(stdout);
    for (;;)
        spin();
}
