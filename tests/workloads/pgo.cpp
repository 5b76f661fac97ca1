// A program for profile-guided optimization: a checksum of records, whose every step goes through one function that is too
// long to be inlined for its size. Nearly all steps take one short way through it, which a compiler can't know.
//
// pgo STEPS -> prints a sum, so that nothing is left out.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace checksum {

struct State {
  uint64_t a = 1, b = 2, c = 3, d = 4, odd = 0;

  // What seldom happens is spelled out at length, as checks are.
  void add(uint64_t value) {
    a += value;
    b ^= a;
    if (value >> 48) {
      odd++;
      uint64_t rest = value;
      for (unsigned i = 0; rest; i++, rest >>= 5) {
        switch ((rest ^ i) & 7) {
        case 0: a = a * 31 + d; b -= c ^ i; break;
        case 1: b = b * 37 + a; c -= d ^ i; break;
        case 2: c = c * 41 + b; d -= a ^ i; break;
        case 3: d = d * 43 + c; a -= b ^ i; break;
        case 4: a ^= (b << 3) | (b >> 61); c += odd; break;
        case 5: b ^= (c << 5) | (c >> 59); d += odd; break;
        case 6: c ^= (d << 7) | (d >> 57); a += odd; break;
        default: d ^= (a << 9) | (a >> 55); b += odd; break;
        }
        if ((a ^ b) % 1021 == 17) {
          uint64_t swapped = a;
          a = c;
          c = d;
          d = b;
          b = swapped;
        } else if ((c ^ d) % 2039 == 23) {
          a += b / (d | 1);
          c += d / (b | 1);
        }
      }
    }
    c = ((c << 13) | (c >> 51)) + b;
    d ^= c;
  }

  uint64_t sum() const { return a ^ b ^ c ^ d ^ odd; }
};

static uint64_t run(const std::vector<uint64_t> &records, uint64_t steps) {
  State state;
  for (uint64_t i = 0; i < steps; i++) {
    uint64_t record = records[i % records.size()];
    state.add(record & 0xffff);
    if (record & 1)
      state.add(record);
    else
      state.add(i);
  }
  return state.sum();
}

static uint64_t check(const std::vector<uint64_t> &records) {
  State state;
  for (uint64_t record : records)
    state.add(record << 40);
  return state.sum();
}

} // namespace checksum

int main(int argc, char **argv) {
  uint64_t steps = argc > 1 ? strtoull(argv[1], nullptr, 10) : 100000000;
  std::vector<uint64_t> records;
  for (uint64_t i = 0; i < 1024; i++)
    records.push_back(i * 2654435761u & 0xffffffff);
  uint64_t sum = checksum::check(records);
  sum ^= checksum::run(records, steps);
  printf("%llx\n", static_cast<unsigned long long>(sum));
}
