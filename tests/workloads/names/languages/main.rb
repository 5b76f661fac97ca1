# Burns CPU time in a function. Output: a number.
def work(steps, number)
  i = 0
  while i < steps
    i += 1
    number = ((number * 31 + i) ^ (number >> 7)) & 0xffffff
  end
  number
end
puts work(12_000_000, 1)
