/* More than 200 MB of code in 200,000 functions, each with rows of its own, so that what it is linked
 * with is a large executable. See chains.c.
 */
    .text
    .rept 200000
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    .skip 1060, 0x90
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .endr
    .section .note.GNU-stack, "", @progbits
