# Functions whose unwind information has every kind of rule. Labels are looked up by the test.
	.text
	.cfi_sections .eh_frame

plain:
	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
plain_pushed:
	mov %rsp, %rbp
	.cfi_def_cfa_register %rbp
plain_framed:
	.skip 70, 0x90
	.cfi_remember_state
	pop %rbp
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
plain_popped:
	ret
	.cfi_restore_state
plain_again:
	.skip 300, 0x90
	.cfi_def_cfa %rsp, 4104
	.cfi_escape 0x2e, 0x10
plain_large:
	.skip 70000, 0x90
	.cfi_def_cfa %rsp, 8
	.cfi_same_value %rbp
plain_far:
	ret
	.cfi_endproc
plain_end:
	.skip 64, 0x90

realigned:
	.cfi_startproc
	.cfi_def_cfa %r10, 0
realigned_r10:
	nop
	.cfi_escape 0x10, 6, 2, 0x76, 0
realigned_fp:
	nop
	.cfi_escape 0x0f, 3, 0x76, 0x78, 6
realigned_cfa:
	nop
	.cfi_escape 0x0f, 5, 0x77, 0xc0, 0, 6, 0x23, 8
	.cfi_endproc

saved:
	.cfi_startproc
	.cfi_def_cfa_offset 40
	.cfi_escape 0x10, 6, 2, 0x77, 8
saved_by_sp:
	nop
	.cfi_escape 0x2f, 6, 2
saved_above:
	nop
	.cfi_undefined %rbp
saved_nowhere:
	nop
	.cfi_register %rbp, %rax
saved_in_register:
	nop
	.cfi_escape 0x05, 6, 3
saved_extended:
	nop
	.cfi_escape 0x11, 6, 4
saved_signed:
	nop
	.cfi_escape 0x10, 6, 2, 0x23, 0x18
saved_by_cfa:
	nop
	.cfi_escape 0x06, 6
saved_restored:
	nop
	.cfi_endproc

outermost:
	.cfi_startproc
	.cfi_undefined %rip
	nop
	.cfi_endproc

elsewhere:
	.cfi_startproc
	.cfi_register %rip, %rdx
	nop
	.cfi_offset %rbp, -16
elsewhere_framed:
	nop
	.cfi_restore %rbp
	.cfi_restore %rip
elsewhere_back:
	nop
	.cfi_escape 0x14, 7, 2
elsewhere_stack:
	nop
	.cfi_escape 0x14, 7, 0
elsewhere_stack_back:
	nop
	.cfi_escape 0x0f, 5, 0x77, 0, 0x79, 0, 0x22
elsewhere_cfa:
	nop
	.cfi_endproc

linkage:
	.cfi_startproc
	.cfi_escape 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22
	nop
	.cfi_endproc

signal:
	.cfi_startproc
	.cfi_signal_frame
	.cfi_escape 0x0f, 4, 0x77, 0xa8, 1, 6
	.cfi_escape 0x10, 16, 3, 0x77, 0xb0, 1
	.cfi_escape 0x10, 7, 3, 0x77, 0xa8, 1
	.cfi_escape 0x10, 6, 3, 0x77, 0x80, 1
	nop
	.cfi_endproc

damaged:
	.cfi_startproc
	nop
	.cfi_def_cfa_offset 24
damaged_before:
	nop
	.cfi_escape 0x3f
	.cfi_def_cfa_offset 32
damaged_behind:
	nop
	.cfi_endproc

other:
	.cfi_startproc
	nop
	.cfi_endproc
