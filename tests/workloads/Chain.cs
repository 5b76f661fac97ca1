// A chain of methods that a runtime compiles: Main, Outer, Middle, Leaf; and the same below a sort of the
// framework, which calls back. All have loops, since the compiler saves no frame pointer in small methods.
// Argument: seconds.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;

class Chain
{
    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Leaf(int n)
    {
        int x = n;
        for (int i = 0; i < 20000; i++) x = x * 31 + i;
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Middle(int n)
    {
        int x = 0;
        for (int i = 0; i < 2; i++) x += Leaf(n + i);
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Outer(int n)
    {
        int x = 0;
        for (int i = 0; i < 2; i++) x += Middle(n + i);
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Spin(int n)
    {
        int x = n;
        for (int i = 0; i < 20000; i++) x = x * 33 + i;
        return x;
    }

    static int made;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Compare(int a, int b)
    {
        for (int i = 0; i < 2; i++) made += Spin(a + i);
        return a.CompareTo(b);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Sorted(int n)
    {
        var values = new[] { n, n + 3, n + 1, n + 7, n + 2 };
        Array.Sort(values, Compare);
        return values[0];
    }

    static void Main(string[] arguments)
    {
        long until = long.Parse(arguments[0]) * 1000;
        var watch = Stopwatch.StartNew();
        int x = 0;
        while (watch.ElapsedMilliseconds < until) x = Outer(x) + Sorted(x);
        Console.WriteLine(x + made);
    }
}
