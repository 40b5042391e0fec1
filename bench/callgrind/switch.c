/* Valgrind's client requests, for ctypes: what runs between on() and off() is counted. */
#include <valgrind/callgrind.h>

void on(void) { CALLGRIND_START_INSTRUMENTATION; }

void off(void) { CALLGRIND_STOP_INSTRUMENTATION; }
