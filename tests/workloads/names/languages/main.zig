//! Calls ma's and mb's work 300 times, with steps of 1 to 3. Output: a number.
const std = @import("std");
const ma = @import("ma.zig");
const mb = @import("mb.zig");

pub fn main() void {
    var number: u64 = 1;
    for (0..300) |_| {
        number = ma.work(1000000, number);
        number = mb.work(3000000, number);
    }
    std.debug.print("{}\n", .{number});
}
