// Calls one function for each way to pass a value of C++; see arguments.c for the lines with `//=`.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#ifdef __clang__
#define KEEP __attribute__((noinline))
#else
#define KEEP __attribute__((noipa))
#endif
#define USED(x) __asm__ volatile("" : : "g"(x) : "memory")

enum class Color : unsigned char { Green = 1, Red = 200 };
struct Empty {};
struct Base { int b; };
struct Derived : Base { int d; };
struct Holder {
  int value;
  long other;
  explicit Holder(int v) : value(v), other(v + 1) {}
  KEEP Holder(const Holder &from) : value(from.value), other(from.other) { USED(value); }
  KEEP ~Holder() { USED(value); }
};
struct Defaulted {
  int value;
  ~Defaulted() = default;
};

class Shape {
public:
  KEEP explicit Shape(int w);
  KEEP int area(int scale) const;
  KEEP static int count_shapes(int how_many);
  KEEP virtual const char *title(const std::string &prefix);
  KEEP std::string described(int how);
  virtual ~Shape() = default;
  int width;
};
//= Shape(this: 0x*, w: 3)
Shape::Shape(int w) : width(w) {}
//= area(this: 0x*, scale: 4) -> 12
int Shape::area(int scale) const { return width * scale; }
//= count_shapes(how_many: 5) -> 6
int Shape::count_shapes(int how_many) { return how_many + 1; }
//= title(this: 0x*, prefix: "pre") -> "re"
const char *Shape::title(const std::string &prefix) { return prefix.c_str() + 1; }
//= described(this: 0x*, how: 7) -> "shape"
std::string Shape::described(int how) {
  USED(how);
  return "shape";
}

namespace inner {
//= by_reference(empty: "", text: "a text of more than sixteen bytes", moved: "moved") -> "a text of more than sixteen bytes"
KEEP const std::string &by_reference(const std::string &empty, std::string &text, std::string &&moved) {
  USED(empty.data()); USED(moved.data());
  return text;
}
} // namespace inner
//= by_value(text: "by value", after: 3) -> 4
KEEP int by_value(std::string text, int after) {
  USED(text.data());
  return after + 1;
}
//= by_pointer(text: "with \0 zero", null: <unreadable *>, after: 5) -> "with \0 zero"
KEEP std::string *by_pointer(std::string *text, const std::string *null, int after) {
  USED(null); USED(after);
  return text;
}
//= views(view: "view", empty: "", after: 6) -> "iew"
KEEP std::string_view views(std::string_view view, std::string_view empty, int after) {
  USED(empty.data()); USED(after);
  return view.substr(1);
}
//= returns_string(n: 3) -> "a string that is too long for the inside"
KEEP std::string returns_string(int n) {
  USED(n);
  return "a string that is too long for the inside";
}
//= references(i: 0x*, d: 0x*, moved: 0x*, v: 0x*) -> 0x*
KEEP int &references(int &i, const double &d, int &&moved, const std::vector<int> &v) {
  USED(&d); USED(&moved); USED(&v);
  return i;
}
//= scoped_enum(color: Red (200), truth: true) -> Green (1)
KEEP Color scoped_enum(Color color, bool truth) {
  USED((int)color); USED(truth);
  return Color::Green;
}
//= derived(d: {Base: {b: 1}, d: 2}, after: 3) -> {Base: {b: 2}, d: 3}
KEEP Derived derived(Derived d, int after) {
  d.b = d.d;
  d.d = after;
  return d;
}
//= empty_class(e: {}, after: 4) -> 5
KEEP int empty_class(Empty e, int after) {
  (void)e;
  return after + 1;
}
//= by_invisible_reference(h: {value: 6, other: 7}, after: 8) -> {value: 6, other: 9}
KEEP Holder by_invisible_reference(Holder h, int after) {
  Holder copy(h);
  copy.other = after + 1;
  return copy;
}
//= still_trivial(d: {value: 61}, after: 62) -> 63
KEEP int still_trivial(Defaulted d, int after) {
  USED(d.value);
  return after + 1;
}
//= owned(owner: *, after: 9) -> *
KEEP std::unique_ptr<int> owned(std::unique_ptr<int> owner, int after) {
  USED(after);
  return owner;
}
//= special_pointers(n: 0x0, member: 0, method: *, after: 10) -> 11
KEEP int special_pointers(std::nullptr_t n, int Holder::*member, int (Shape::*method)(int) const, int after) {
  USED(n); USED(member); (void)method;
  return after + 1;
}
//= templated(value: -12, text: "template") -> -13
template <typename T> KEEP T templated(T value, const char *text) {
  USED(text);
  return value - 1;
}
//= vectors(v: 0x*, by_value: *, after: 14) -> 15
KEEP int vectors(std::vector<int> *v, std::vector<int> by_value, int after) {
  USED(v); USED(by_value.data());
  return after + 1;
}

//~ rearranged(unused: 1, s: "rearranged", c: 3) -> *
static __attribute__((noinline)) int rearranged(int unused, const std::string &s, int c) {
  (void)unused;
  return (int)s.size() + c;
}

// By an address that the compiler doesn't know: it can't leave out what a function does not use.
template <typename T> T unknown(T function) {
  T volatile known = function;
  return known;
}

int main(int argc, char **) {
  Shape shape(3);
  (shape.*unknown(&Shape::area))(4);
  unknown(&Shape::count_shapes)(5);
  std::string pre = "pre", text = "a text of more than sixteen bytes", moved = "moved";
  (shape.*unknown(&Shape::title))(pre);
  (shape.*unknown(&Shape::described))(7);
  unknown(&inner::by_reference)(std::string(), text, std::move(moved));
  unknown(&by_value)("by value", 3);
  std::string zero("with \0 zero", 11);
  unknown(&by_pointer)(&zero, nullptr, 5);
  unknown(&views)("view", "", 6);
  unknown(&returns_string)(3);
  int i = 1;
  std::vector<int> numbers{1, 2, 3};
  unknown(&references)(i, 2.0, 3, numbers);
  unknown(&scoped_enum)(Color::Red, true);
  unknown(&derived)(Derived{{1}, 2}, 3);
  unknown(&empty_class)(Empty{}, 4);
  Holder holder(6);
  unknown(&by_invisible_reference)(holder, 8);
  unknown(&still_trivial)(Defaulted{61}, 62);
  unknown(&owned)(std::make_unique<int>(5), 9);
  unknown(&special_pointers)(nullptr, &Holder::value, &Shape::area, 10);
  unknown(&templated<long>)(-12, "template");
  unknown(&vectors)(&numbers, numbers, 14);
  return rearranged(argc, "rearranged", 3) == 0;
}
