/* KVTRACE_IMAGE_NAME and KVTRACE_IMAGE_PATH are given by the Makefile. */
        .section .rodata
        .balign 16
        .global KVTRACE_IMAGE_NAME
        .hidden KVTRACE_IMAGE_NAME
        .type KVTRACE_IMAGE_NAME, %object
KVTRACE_IMAGE_NAME:
        .incbin KVTRACE_IMAGE_PATH
        .size KVTRACE_IMAGE_NAME, . - KVTRACE_IMAGE_NAME
        .section .note.GNU-stack, "", %progbits
