// Calls ma's and mb's work 300 times, with steps of 1 to 3. Output: a number.
const ma = require('./ma.js');
const mb = require('./mb.js');
let number = 1;
for (let turn = 0; turn < 300; turn++) {
    number = ma.work(400000, number);
    number = mb.work(1200000, number);
}
console.log(number);
