/** A known chain of methods: main, outer, middle, leaf. Usage: java Chain SECONDS; "ready" when all are compiled. */
public class Chain {
    static int total;

    static int leaf(int n) {
        int s = 0;
        for (int i = 0; i < n; i++) s = s * 31 + i;
        return s;
    }

    static int middle(int n) { return leaf(n) + 1; }

    static int outer(int n) { return middle(n) + 1; }

    static void work(double seconds) {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < until) for (int i = 0; i < 100; i++) total += outer(20000);
    }

    public static void main(String[] arguments) {
        work(1);
        System.out.println("ready");
        work(Double.parseDouble(arguments[0]));
        System.out.println(total);
    }
}
