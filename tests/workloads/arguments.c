/* Calls one function for each way to pass a value. A line that begins with `//=` is what a tracer
 * that reads arguments and results has to say of the call: names and values, `*` for any text.
 * Lines with `//~` are of functions that the compiler may rearrange: a value is right or missing. */
#include <complex.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uchar.h>
#include <wchar.h>

#ifdef __clang__
#define KEEP __attribute__((noinline))
#else
#define KEEP __attribute__((noipa))
#endif
/* By an address that the compiler doesn't know: it can't leave out what a function does not use. */
#define CALL(function) (*(__typeof__(&function) volatile[]){&function})
#define USED(x) __asm__ volatile("" : : "g"(x) : "memory")

enum color { GREEN = 1, RED = 2, BLUE = 4 };
enum level { LOW = -1, HIGH = 1 };
typedef int number;
typedef const volatile number odd_number;
struct point { int x, y; };
struct wide { long a; int b; };
struct half { double d; long n; };
struct floats { float a, b; };
struct big { long a; double d; char name[8]; struct point at; const char *text; };
struct bits { unsigned a : 3; int b : 5; unsigned c : 12; enum color d : 4; };
union either { int i; unsigned char c[4]; };
struct nested { struct point from; union either to; };
struct __attribute__((packed)) packed { char c; int i; };
struct triple { int v[3]; };
struct two { long a, b; };
struct none { };
struct over { _Alignas(32) long a; };
struct third { char c[3]; };

//= signed_ints(a: -1, b: -2, c: -3, d: -4, e: -5) -> -15
KEEP int signed_ints(signed char a, short b, int c, long d, long long e) {
  return a + b + c + (int)d + (int)e;
}
//= unsigned_ints(a: 255, b: 65535, c: 4294967295, d: 18446744073709551615) -> 200
KEEP unsigned char unsigned_ints(unsigned char a, unsigned short b, unsigned c, unsigned long d) {
  USED(a); USED(b); USED(c); USED(d);
  return 200;
}
//= typedefs(size: 7, n: -8, odd: -9, c: 250) -> -2
KEEP number typedefs(size_t size, number n, odd_number odd, const uint8_t c) {
  USED(odd); USED(c);
  return (int)size + n - 1;
}
//= truths(yes: true, no: false) -> true
KEEP bool truths(bool yes, bool no) { return yes && !no; }
//= characters(c: 'x', quote: '\'', high: -1, wide: 'ß', u: '😀') -> 'y'
KEEP char characters(char c, char quote, char high, wchar_t wide, char32_t u) {
  USED(quote); USED(high); USED(wide); USED(u);
  return c + 1;
}
//= enums(color: RED (2), level: LOW (-1), other: 3) -> BLUE (4)
KEEP enum color enums(enum color color, enum level level, enum color other) {
  USED(level); USED(other);
  return color * 2;
}
//= pointers(nothing: 0x0, p: 0x1234, q: 0x5678, function: 0x9abc) -> 0x1235
KEEP void *pointers(void *nothing, const int *p, struct point *q, void (*function)(int)) {
  USED(nothing); USED(q); USED(function);
  return (char *)p + 1;
}
//= strings(text: "hello\n", same: "world", null: <unreadable 0x0>, bad: <unreadable 0x10>) -> "ello\n"
KEEP const char *strings(const char *text, char *const same, char *null, const char *bad) {
  USED(same); USED(null); USED(bad);
  return text + 1;
}
//= long_string(text: "0123456789012345678901234567890123456789012345678901234567890123"…, utf8: "größe")
KEEP void long_string(const char *text, const char *utf8) { USED(text); USED(utf8); }
//= stacked(a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: "seven") -> 8
KEEP long stacked(long a, long b, long c, long d, long e, long f, const char *g) {
  USED(a); USED(b); USED(c); USED(d); USED(e); USED(f); USED(g);
  return 8;
}
//= many(a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: -8, i: <unavailable>)
KEEP void many(int a, int b, int c, int d, int e, int f, int g, short h, int i) {
  USED(a); USED(b); USED(c); USED(d); USED(e); USED(f); USED(g); USED(h); USED(i);
}
//= mixed(a: 1, b: <unavailable>, c: 3, d: <unavailable>, e: 5) -> <unavailable>
KEEP double mixed(int a, double b, int c, float d, long e) { return a + b + c + d + e; }
//= nine_doubles(a: <unavailable>, b: <unavailable>, c: <unavailable>, d: <unavailable>, e: <unavailable>, f: <unavailable>, g: <unavailable>, h: <unavailable>, i: 9.5, j: 10.25, k: 11) -> 12
KEEP int nine_doubles(double a, double b, double c, double d, double e, double f, double g, double h,
                      double i, float j, int k) {
  return (int)(a + b + c + d + e + f + g + h + i + j) * 0 + k + 1;
}
//= small_struct(p: {x: 1, y: -2}, after: 3) -> {x: -2, y: 1}
KEEP struct point small_struct(struct point p, int after) {
  USED(after);
  return (struct point){p.y, p.x};
}
//= two_registers(w: {a: 5, b: -6}, after: 7) -> {a: 7, b: 8}
KEEP struct wide two_registers(struct wide w, int after) {
  USED(w.a);
  return (struct wide){after, 8};
}
//= half_float(h: {d: <unavailable>, n: 9}, after: 10) -> {d: <unavailable>, n: 11}
KEEP struct half half_float(struct half h, int after) {
  return (struct half){h.d, h.n + after - 8};
}
//= all_float(f: <unavailable>, after: 12) -> <unavailable>
KEEP struct floats all_float(struct floats f, int after) {
  return (struct floats){f.b, f.a + after};
}
//= in_memory(before: 1, b: {a: 13, d: 1.5, name: "fifteen", at: {x: 16, y: 17}, text: 0x12}, after: 19) -> {a: 20, d: 1.5, name: "fifteen", at: {x: 16, y: 17}, text: 0x12}
KEEP struct big in_memory(int before, struct big b, int after) {
  b.a = after + before;
  return b;
}
//= bit_fields(b: {a: 5, b: -3, c: 4095, d: RED (2)}) -> {a: 5, b: -3, c: 4095, d: BLUE (4)}
KEEP struct bits bit_fields(struct bits b) {
  b.d = BLUE;
  return b;
}
//= unions(e: {i: 16909060, c: {0: 4, 1: 3, 2: 2, 3: 1}}, n: {from: {x: 1, y: 2}, to: {i: 3, c: {0: 3, 1: 0, 2: 0, 3: 0}}}) -> 4
KEEP int unions(union either e, struct nested n) {
  USED(e.i);
  return n.to.i + 1;
}
//= packed_struct(p: {c: 'p', i: 77}, after: 78) -> 79
KEEP int packed_struct(struct packed p, int after) {
  USED(p.i);
  return after + 1;
}
//= array_struct(t: {v: {0: 1, 1: 2, 2: 3}}, h: {c: "abc"}, after: 4) -> {v: {0: 3, 1: 2, 2: 4}}
KEEP struct triple array_struct(struct triple t, struct third h, int after) {
  USED(h.c[0]);
  return (struct triple){{t.v[2], t.v[1], after}};
}
//= no_room(a: 1, b: 2, c: 3, d: 4, e: 5, s: {a: 6, b: 7}, last: 8) -> 9
KEEP int no_room(long a, long b, long c, long d, long e, struct two s, int last) {
  USED(a); USED(b); USED(c); USED(d); USED(e); USED(s.a);
  return last + 1;
}
//= long_doubles(x: 1.5, n: 2, y: -0.25) -> <unavailable>
KEEP long double long_doubles(long double x, int n, long double y) { return x + n + y; }
//= aligned(a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, x: 8.5)
KEEP void aligned(int a, int b, int c, int d, int e, int f, int g, long double x) {
  USED(a); USED(b); USED(c); USED(d); USED(e); USED(f); USED(g);
  volatile long double keep = x;
  (void)keep;
}
//= over_aligned(o: {a: 41}, after: 42) -> 43
KEEP int over_aligned(struct over o, int after) {
  USED(o.a);
  return after + 1;
}
//= wide_ints(small: -5, large: {high: 1, low: 2}, after: 3) -> 18446744073709551615
KEEP unsigned __int128 wide_ints(__int128 small, unsigned __int128 large, int after) {
  USED((long)large); USED(after);
  return (unsigned long)(small + 4);
}
//= complexes(c: <unavailable>, after: 3) -> <unavailable>
KEEP double complex complexes(float complex c, int after) { return c * after; }
//= empties(n: {}, after: 3) -> 4
KEEP int empties(struct none n, int after) {
  (void)n;
  return after + 1;
}
//= variadic(format: "%d", first: 1) -> 2
KEEP int variadic(const char *format, int first, ...) {
  va_list list;
  va_start(list, first);
  int second = va_arg(list, int);
  va_end(list);
  USED(format);
  return second;
}
//= nothing()
KEEP void nothing(void) { __asm__ volatile(""); }

//~ rearranged(unused: 1, p: 0x*, c: 3, text: "text") -> *
static __attribute__((noinline)) int rearranged(int unused, const struct big *p, int c,
                                                const char *text) {
  (void)unused;
  USED(text);
  return (int)p->a + c;
}

int main(int argc, char **argv) {
  (void)argv;
  static const char digits[] = "01234567890123456789012345678901234567890123456789012345678901234567890";
  struct big big = {13, 1.5, "fifteen", {16, 17}, (const char *)0x12};
  CALL(signed_ints)(-1, -2, -3, -4, -5);
  CALL(unsigned_ints)(255, 65535, 4294967295, -1UL);
  CALL(typedefs)(7, -8, -9, 250);
  CALL(truths)(true, false);
  CALL(characters)('x', '\'', -1, L'ß', U'😀');
  CALL(enums)(RED, LOW, 3);
  CALL(pointers)(0, (int *)0x1234, (struct point *)0x5678, (void (*)(int))0x9abc);
  char world[] = "world";
  CALL(strings)("hello\n", world, 0, (char *)0x10);
  CALL(long_string)(digits, "größe");
  CALL(stacked)(1, 2, 3, 4, 5, 6, "seven");
  CALL(many)(1, 2, 3, 4, 5, 6, 7, -8, 9);
  CALL(mixed)(1, 2.5, 3, 4.5f, 5);
  CALL(nine_doubles)(1, 2, 3, 4, 5, 6, 7, 8, 9.5, 10.25f, 11);
  CALL(small_struct)((struct point){1, -2}, 3);
  CALL(two_registers)((struct wide){5, -6}, 7);
  CALL(half_float)((struct half){8.5, 9}, 10);
  CALL(all_float)((struct floats){1, 2}, 12);
  CALL(in_memory)(1, big, 19);
  CALL(bit_fields)((struct bits){5, -3, 4095, RED});
  CALL(unions)((union either){0x01020304}, (struct nested){{1, 2}, {3}});
  CALL(packed_struct)((struct packed){'p', 77}, 78);
  CALL(array_struct)((struct triple){{1, 2, 3}}, (struct third){"abc"}, 4);
  CALL(no_room)(1, 2, 3, 4, 5, (struct two){6, 7}, 8);
  CALL(long_doubles)(1.5L, 2, -0.25L);
  CALL(aligned)(1, 2, 3, 4, 5, 6, 7, 8.5L);
  CALL(over_aligned)((struct over){41}, 42);
  CALL(wide_ints)(-5, ((unsigned __int128)1 << 64) + 2, 3);
  CALL(complexes)(1.0f, 3);
  CALL(empties)((struct none){}, 3);
  CALL(variadic)("%d", 1, 2);
  CALL(nothing)();
  rearranged(argc, &big, 3, "text");
  return 0;
}
