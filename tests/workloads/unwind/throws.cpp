// Chains of calls while a C++ exception is in flight: below destructors that it runs, and filters. See known.h.
//
// Usage: throws SECONDS

#include <cstring>
#include <stdexcept>

#include "known.h"

static volatile uint64_t sink;

extern "C" {

FRAME void known_destructor(uint64_t x)
{
    sink = sink + known_leaf(x);
    STAY;
}

FRAME void known_catch(uint64_t x)
{
    sink = sink + known_leaf(x);
    STAY;
}

}

struct Guard {
    uint64_t x;
    ~Guard() { known_destructor(x); STAY; }
};

extern "C" {

FRAME void known_throws(uint64_t x)
{
    if (known_seed)
        throw std::runtime_error("known");
    sink = x;
}

FRAME void known_guarded(uint64_t x)
{
    Guard guard{x};
    known_throws(x);
    STAY;
}

FRAME uint64_t known_catches(uint64_t x)
{
    try {
        known_guarded(x);
    } catch (const std::exception &error) {
        turn();
        known_catch(x + strlen(error.what()));
    }
    STAY;
    return x;
}

// Throws and catches as fast as it can: samples are inside of the library that unwinds.
FRAME uint64_t known_throwing(uint64_t x)
{
    while (now_ns() < known_until)
        try {
            known_throws(x);
        } catch (...) {
            x++;
        }
    STAY;
    return x;
}

}

int main(int argc, char **argv)
{
    // Guard's destructor has a frame of its own or not, as the compiler likes; its name is not known_.
    chain("known_spin known_leaf known_destructor known_guarded known_catches main");
    chain("known_spin known_leaf known_catch known_catches main");
    chain("known_throws known_guarded known_catches main");
    chain("known_throws known_throwing main");
    begin();
    uint64_t end = now_ns() + (uint64_t)(argc > 1 ? atof(argv[1]) * 1e9 : 1e9);
    while (now_ns() < end) {
        turn(); sink = sink + known_catches(known_seed); STAY;
        turn(); sink = sink + known_throwing(known_seed); STAY;
    }
    return 0;
}
