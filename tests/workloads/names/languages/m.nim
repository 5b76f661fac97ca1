## A module m@ whose work burns CPU time: @ is a or b. Steps -> a number.
proc work*(steps: int, number: uint64): uint64 {.noinline.} =
  result = number
  for i in 1..steps:
    result = (result * 31 + uint64(i)) xor (result shr 7)
