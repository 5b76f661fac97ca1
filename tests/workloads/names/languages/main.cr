# Calls Ma's and Mb's work 300 times, with steps of 1 to 3. Output: a number.
require "./ma"
require "./mb"

number = 1_u64
300.times do
  number = Mb.work(3_000_000_u64, Ma.work(1_000_000_u64, number))
end
puts number
