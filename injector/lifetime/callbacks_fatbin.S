/* KVTRACE_FATBIN_PATH is given by the Makefile. */
        .section .rodata
        .balign 16
        .global kvtrace_lifetime_fatbin
        .hidden kvtrace_lifetime_fatbin
        .type kvtrace_lifetime_fatbin, %object
kvtrace_lifetime_fatbin:
        .incbin KVTRACE_FATBIN_PATH
        .size kvtrace_lifetime_fatbin, . - kvtrace_lifetime_fatbin
        .section .note.GNU-stack, "", %progbits
