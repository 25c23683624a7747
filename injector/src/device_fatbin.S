/* KVTRACE_FATBIN_PATH is given by the Makefile. */
        .section .rodata
        .balign 16
        .global kvtrace_device_fatbin
        .hidden kvtrace_device_fatbin
        .type kvtrace_device_fatbin, %object
kvtrace_device_fatbin:
        .incbin KVTRACE_FATBIN_PATH
        .size kvtrace_device_fatbin, . - kvtrace_device_fatbin
        .section .note.GNU-stack, "", %progbits
