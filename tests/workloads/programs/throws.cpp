// What C++ programs do: exceptions through many frames, also through one of libc; streams, maps, strings.
// Output: results of each, the same in every run. Ends with status 3.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Cleaned {
    std::string text;
    int *count;
    ~Cleaned() { ++*count; }
};

static int down(int depth, int *cleaned) {
    Cleaned local{std::to_string(depth), cleaned};
    if (depth == 0)
        throw std::runtime_error("bottom");
    return down(depth - 1, cleaned) + static_cast<int>(local.text.size());
}

static int refuses(const void *, const void *) { throw 5; }

int main() {
    std::map<std::string, int> sums;
    for (int i = 0; i < 500; i++)
        sums[std::to_string(i * 7919 % 1009)] += i;
    int caught = 0, cleaned = 0, through_libc = 0;
    for (int i = 0; i < 200; i++) {
        try {
            down(i % 10, &cleaned);
        } catch (const std::exception &) {
            caught++;
        }
    }
    for (int i = 0; i < 50; i++) {
        int numbers[] = {3, 2, 1};
        try {
            qsort(numbers, 3, sizeof(int), refuses);
        } catch (int) {
            through_libc++;
        }
    }
    try {
        std::stoi("no number");
    } catch (const std::invalid_argument &error) {
        std::cout << "invalid: " << error.what() << "\n";
    }
    try {
        std::vector<int>().at(3);
    } catch (const std::out_of_range &) {
        std::cout << "out of range\n";
    }
    std::ostringstream out;
    out << sums.size() << " " << sums["17"] << " " << caught << " " << cleaned << " " << through_libc;
    std::cout << out.str() << " " << 1.5 << std::endl;
    return 3;
}
