/* The device callback for every architecture the compiler knew, embedded in the library. */
#ifndef KVTRACE_DEVICE_FATBIN_H
#define KVTRACE_DEVICE_FATBIN_H

extern "C" const unsigned char kvtrace_device_fatbin[];

#endif
