// A known chain of functions: entry, outer, middle, leaf.
//
// Usage: node chain.js SECONDS. The work is in `leaf`; the callers are kept from being inlined by what they do
// with arguments.
'use strict';
function leaf(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }
function middle(n) { try { return leaf(n) + 1; } finally { total++; } }
function outer(n) { try { return middle(n) + 1; } finally { total++; } }
let total = 0;
function entry(until) { while (Date.now() < until) total += outer(2000000); }
entry(Date.now() + Number(process.argv[2]) * 1000);
console.log(JSON.stringify({ total }));
