"""Counting what each thread of a device callback runs, from machine code as nvdisasm prints it."""

from scripts.count_device_instructions import Count, count, functions

CODE = """
//--------------------- .text.kvtrace_block_enter --------------------------
kvtrace_block_enter:
        /*0000*/                   STL [R1], R2 ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/               @P0 BRA `(.L_x_2) ;
        /*0030*/                   LDG.E.64 R6, [R4] ;
        /*0040*/              @!P0 BRA `(.L_x_1) ;
        /*0050*/                   REDG.E.ADD.64.STRONG.GPU [R12+0x40], R10 ;
        /*0060*/                   BRA `(.L_x_2) ;
.L_x_1:
        /*0070*/                   STG.E.128.STRONG.SYS [R2], R8 ;
        /*0080*/                   STG.E.128.STRONG.SYS [R2+0x10], R12 ;
.L_x_2:
        /*0090*/                   LDL R2, [R1] ;
        /*00a0*/                   RET.ABS.NODEC R20 0x0 ;
.L_x_3:
        /*00b0*/                   BRA `(.L_x_3);
        /*00c0*/                   NOP;

//--------------------- .text.kvtrace_ladder_leader --------------------------
kvtrace_ladder_leader:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/               @P0 BRA `(.L_x_5) ;
        /*0020*/                   LDG.E.64 R6, [R4] ;
.L_x_5:
        /*0030*/                   RET.ABS.NODEC R20 0x0 ;

//--------------------- .text._ZN4some6helperEv --------------------------
_ZN4some6helperEv:
        /*0000*/                   RET.ABS.NODEC R20 0x0 ;
"""


def test_the_two_ways_through_a_callback():
    counts = {name: count(name, code) for name, code in functions(CODE)}
    assert counts == {
        # Others leave at the first branch; the first thread stores both parts.
        "kvtrace_block_enter": Count("kvtrace_block_enter", 11, 5, 2, 9, 2),
        # Nothing is stored: the longest way is the first thread's.
        "kvtrace_ladder_leader": Count("kvtrace_ladder_leader", 4, 3, 0, 4, 0),
    }
