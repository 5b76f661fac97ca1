/* A library with so many small functions that the table of their frames takes megabytes.
 * For unwind_chain. */
    .text
    .globl plugin_outer
    .type plugin_outer, @function
plugin_outer:
    .cfi_startproc
    mov %rdi, %rax
    ret
    .cfi_endproc
    .size plugin_outer, . - plugin_outer

    .rept 800000
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .endr
    .section .note.GNU-stack, "", @progbits
