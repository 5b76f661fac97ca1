# A function that only .debug_frame speaks of, and one that .eh_frame is to speak of first.
	.text
	.cfi_sections .debug_frame

debugged:
	.cfi_startproc
	push %rbx
	.cfi_def_cfa_offset 16
debugged_pushed:
	.skip 40, 0x90
	ret
	.cfi_endproc
debugged_end:
