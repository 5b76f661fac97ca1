//! A file m@.zig whose work burns CPU time: @ is a or b. Steps -> a number.
pub noinline fn work(steps: u64, start: u64) u64 {
    var number = start;
    var i: u64 = 1;
    while (i <= steps) : (i += 1) {
        number = (number *% 31 +% i) ^ (number >> 7);
    }
    return number;
}
