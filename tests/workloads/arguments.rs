//! Calls one function for each way to pass a value of Rust; see arguments.c for the lines with `//=`.
//!
//! The functions are called by their addresses, which forbids the compiler to rearrange their
//! parameters.

#![allow(improper_ctypes_definitions)]

use std::hint::black_box;

#[derive(Clone, Copy, PartialEq)]
enum Color {
    Green = 1,
    Red = 2,
}
enum Sum {
    Nothing,
    Number(u32),
    Other(u32),
}
enum Large {
    Numbers(u64, u64, u64),
    Text(String),
}
struct Meters(u32);
struct Real(f64);
struct Pair {
    a: i32,
    b: u8,
}
struct Point {
    x: u32,
    y: u32,
    z: u32,
}
struct Tiny {
    a: u8,
    b: u8,
    c: u8,
}
struct Mixed {
    number: u64,
    real: f64,
}
struct Big {
    number: u64,
    real: f64,
    point: Point,
}
struct Named<'s> {
    name: &'s str,
}
#[repr(C)]
struct Foreign {
    x: i32,
    y: i32,
}
trait Speak {
    fn speak(&self) -> u32;
}
impl Speak for Meters {
    fn speak(&self) -> u32 {
        self.0
    }
}
impl Point {
    //= sum_of(self: 0x*, scale: 2) -> 12
    #[inline(never)]
    fn sum_of(&self, scale: u32) -> u32 {
        (self.x + self.y + self.z) * scale
    }
    //= consumed(self: {x: 1, y: 2, z: 3}, scale: 4) -> {x: 4, y: 2, z: 3}
    #[inline(never)]
    fn consumed(mut self, scale: u32) -> Point {
        self.x *= scale;
        self
    }
}

//= signed_ints(a: -1, b: -2, c: -3, d: -4, e: -5) -> -15
#[inline(never)]
fn signed_ints(a: i8, b: i16, c: i32, d: i64, e: isize) -> i32 {
    i32::from(a) + i32::from(b) + c + d as i32 + e as i32
}
//= unsigned_ints(a: 255, b: 65535, c: 4294967295, d: 18446744073709551615, e: 5) -> 200
#[inline(never)]
fn unsigned_ints(a: u8, b: u16, c: u32, d: u64, e: usize) -> u8 {
    black_box((a, b, c, d, e));
    200
}
//= wide_ints(small: -5, after: 6) -> -4
#[inline(never)]
fn wide_ints(small: i128, after: u32) -> i128 {
    black_box(after);
    small + 1
}
//= truths(yes: true, no: false, c: 'ß') -> 'x'
#[inline(never)]
fn truths(yes: bool, no: bool, c: char) -> char {
    black_box((yes, no, c));
    'x'
}
//= plain_enum(color: Red (2), other: Green (1)) -> Green (1)
#[inline(never)]
fn plain_enum(color: Color, other: Color) -> Color {
    black_box(color);
    other
}
//= slices(text: "text", empty: "", bytes: {data_ptr: 0x*, length: 3}, after: <unavailable>) -> "ext"
#[inline(never)]
fn slices<'t>(text: &'t str, empty: &str, bytes: &[u8], after: u8) -> &'t str {
    black_box((empty, bytes, after));
    &text[1..]
}
//= owned_text(by_ref: "by reference", by_value: "by value", mutable: "mutable", after: <unavailable>) -> "returned"
#[inline(never)]
fn owned_text(by_ref: &String, by_value: String, mutable: &mut String, after: u8) -> String {
    black_box((by_ref, &by_value, mutable, after));
    "returned".to_owned()
}
//= reals(a: <unavailable>, n: 2, b: <unavailable>) -> <unavailable>
#[inline(never)]
fn reals(a: f64, n: u32, b: f32) -> f64 {
    a + f64::from(n) + f64::from(b)
}
//= newtypes(m: {0: 7}, r: <unavailable>, after: 8) -> {0: 15}
#[inline(never)]
fn newtypes(m: Meters, r: Real, after: u32) -> Meters {
    black_box(r.0);
    Meters(m.0 + after)
}
//= pairs(p: {a: -1, b: 2}, t: {0: 3, 1: 4}, after: 5) -> {a: 5, b: 2}
#[inline(never)]
fn pairs(p: Pair, t: (u64, u16), after: i32) -> Pair {
    black_box((p.a, t));
    Pair { a: after, b: p.b }
}
//= structs(p: {x: 1, y: 2, z: 3}, t: {a: 4, b: 5, c: 6}, after: 7) -> {a: 6, b: 5, c: 7}
#[inline(never)]
fn structs(p: Point, t: Tiny, after: u8) -> Tiny {
    black_box((p.x, p.y, p.z, t.a));
    Tiny { a: t.c, b: t.b, c: after }
}
//= half_real(m: {number: 8, real: <unavailable>}, after: 9) -> {number: 9, real: <unavailable>}
#[inline(never)]
fn half_real(m: Mixed, after: u64) -> Mixed {
    Mixed { number: after, real: m.real }
}
//= big(b: {number: 10, real: 1.5, point: {x: 1, y: 2, z: 3}}, after: 11) -> {number: 11, real: 2.5, point: {x: 1, y: 2, z: 3}}
#[inline(never)]
fn big(b: Big, after: u64) -> Big {
    Big { number: after, real: b.real + 1.0, point: b.point }
}
//= arrays(small: {0: 1, 1: 2, 2: 3, 3: 4}, large: {0: 5, 1: 6, 2: 7}, after: 8) -> {0: 5, 1: 6}
#[inline(never)]
fn arrays(small: [u8; 4], large: [u64; 3], after: u8) -> [u64; 2] {
    black_box((small, after));
    [large[0], large[1]]
}
//= references(r: 0x*, m: 0x*, b: 0x*, n: {name: {pointer: 0x*, length: 4}}, after: 12) -> 0x*
#[inline(never)]
fn references<'r>(r: &'r u32, m: &mut Point, b: Box<u64>, n: Named<'_>, after: u8) -> &'r u32 {
    black_box((m, b, n.name, after));
    r
}
//= dynamic(d: {pointer: 0x*, vtable: 0x*}, after: 13) -> 14
#[inline(never)]
fn dynamic(d: &dyn Speak, after: u32) -> u32 {
    d.speak() * 0 + after + 1
}
//= options(o: *, r: *, b: *, after: 14) -> *
#[inline(never)]
fn options(o: Option<u32>, r: Option<&u32>, b: Option<bool>, after: u8) -> Option<u32> {
    black_box((r, b, after));
    o
}
//= sums(s: *, l: *, e: *, after: 15) -> *
#[inline(never)]
fn sums(s: Sum, l: Large, e: Result<u64, String>, after: u8) -> Result<u64, String> {
    let number = match s {
        Sum::Nothing => 0,
        Sum::Number(n) | Sum::Other(n) => n,
    };
    let large = match &l {
        Large::Numbers(a, b, c) => a + b + c,
        Large::Text(text) => text.len() as u64,
    };
    black_box((number, large, after));
    e
}
//= empties(*: {}, *: {}, after: 16)
#[inline(never)]
fn empties(u: (), e: [u32; 0], after: u8) {
    black_box((u, e, after));
}
//= many(a: 1, b: 2, c: 3, d: 4, e: 5, text: "on the stack") -> 7
#[inline(never)]
fn many(a: u64, b: u64, c: u64, d: u64, e: u64, text: &str) -> u64 {
    black_box((a, b, c, d, e, text));
    7
}
//= generic(value: -3, name: "i64") -> -3
#[inline(never)]
fn generic<T: Copy>(value: T, name: &str) -> T {
    black_box(name);
    value
}
//= foreign(f: {x: 1, y: 2}, after: 17) -> {x: 2, y: 17}
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn foreign(f: Foreign, after: i32) -> Foreign {
    Foreign { x: f.y, y: after }
}

//~ rearranged(_unused: 1, b: 0x*, text: "text") -> *
#[inline(never)]
fn rearranged(_unused: u32, b: &Big, text: &str) -> u64 {
    b.number + text.len() as u64
}

fn point() -> Point {
    Point { x: 1, y: 2, z: 3 }
}

fn main() {
    black_box(Point::sum_of as fn(&Point, u32) -> u32)(&point(), 2);
    black_box(Point::consumed as fn(Point, u32) -> Point)(point(), 4);
    black_box(signed_ints as fn(i8, i16, i32, i64, isize) -> i32)(-1, -2, -3, -4, -5);
    let unsigned = black_box(unsigned_ints as fn(u8, u16, u32, u64, usize) -> u8);
    unsigned(255, 65535, u32::MAX, u64::MAX, 5);
    black_box(wide_ints as fn(i128, u32) -> i128)(-5, 6);
    black_box(truths as fn(bool, bool, char) -> char)(true, false, 'ß');
    black_box(plain_enum as fn(Color, Color) -> Color)(Color::Red, Color::Green);
    black_box(slices as for<'t> fn(&'t str, &str, &[u8], u8) -> &'t str)("text", "", b"abc", 9);
    let owned = black_box(owned_text as fn(&String, String, &mut String, u8) -> String);
    owned(&"by reference".to_owned(), "by value".to_owned(), &mut "mutable".to_owned(), 3);
    black_box(reals as fn(f64, u32, f32) -> f64)(1.5, 2, 2.5);
    black_box(newtypes as fn(Meters, Real, u32) -> Meters)(Meters(7), Real(1.5), 8);
    black_box(pairs as fn(Pair, (u64, u16), i32) -> Pair)(Pair { a: -1, b: 2 }, (3, 4), 5);
    black_box(structs as fn(Point, Tiny, u8) -> Tiny)(point(), Tiny { a: 4, b: 5, c: 6 }, 7);
    let mixed = Mixed { number: 8, real: 1.5 };
    black_box(black_box(half_real as fn(Mixed, u64) -> Mixed)(mixed, 9).number);
    let value = || Big { number: 10, real: 1.5, point: point() };
    black_box(black_box(big as fn(Big, u64) -> Big)(value(), 11).number);
    black_box(arrays as fn([u8; 4], [u64; 3], u8) -> [u64; 2])([1, 2, 3, 4], [5, 6, 7], 8);
    let named = Named { name: "name" };
    let refs = black_box(references as for<'r> fn(&'r u32, &mut Point, Box<u64>, Named<'_>, u8) -> &'r u32);
    refs(&1, &mut point(), Box::new(2), named, 12);
    black_box(dynamic as fn(&dyn Speak, u32) -> u32)(&Meters(1), 13);
    black_box(options as fn(Option<u32>, Option<&u32>, Option<bool>, u8) -> Option<u32>)(
        Some(1), Some(&2), None, 14,
    );
    let sum = black_box(sums as fn(Sum, Large, Result<u64, String>, u8) -> Result<u64, String>);
    let _ = sum(black_box(Sum::Number(1)), black_box(Large::Numbers(1, 2, 3)), Ok(4), 15);
    black_box((Sum::Nothing, Sum::Other(1), Large::Text(String::new())));
    black_box(empties as fn((), [u32; 0], u8))((), [], 16);
    black_box(many as fn(u64, u64, u64, u64, u64, &str) -> u64)(1, 2, 3, 4, 5, "on the stack");
    black_box(generic as fn(i64, &str) -> i64)(-3, "i64");
    black_box(foreign as extern "C" fn(Foreign, i32) -> Foreign)(Foreign { x: 1, y: 2 }, 17);
    let count = std::env::args().count() as u32;
    black_box(rearranged(count, &black_box(value()), black_box("text")));
}
