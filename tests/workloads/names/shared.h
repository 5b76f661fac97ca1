/* A function that each file which includes this has of its own: of one name, one file and one line. */
FUNCTION static uint64_t work(uint64_t steps) { return spin(steps, 3); }
