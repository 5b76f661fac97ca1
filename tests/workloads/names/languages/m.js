// A module m@ whose work burns CPU time: @ is a or b. Steps -> a number.
exports.work = function work(steps, number) {
    for (let i = 1; i <= steps; i++) number = ((number * 31 + i) ^ (number >>> 7)) & 0xffffff;
    return number;
};
