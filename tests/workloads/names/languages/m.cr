# A module M@ whose work burns CPU time: @ is a or b.
module M@
  # Steps -> a number.
  @[NoInline]
  def self.work(steps : UInt64, number : UInt64) : UInt64
    i = 1_u64
    while i <= steps
      number = (number &* 31 &+ i) ^ (number >> 7)
      i &+= 1
    end
    number
  end
end
