## Calls ma's and mb's work 300 times, with steps of 1 to 3. Output: a number.
import ma, mb

var number = 1'u64
for turn in 1..300:
  number = ma.work(1000000, number)
  number = mb.work(3000000, number)
echo number
