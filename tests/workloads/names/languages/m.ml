(* A module M@ whose work burns CPU time: @ is a or b. Steps -> a number. *)
let [@inline never] work steps number =
  let number = ref number in
  for i = 1 to steps do
    number := (!number * 31 + i) lxor (!number lsr 7)
  done;
  !number
