(* Calls Ma's and Mb's work 300 times, with steps of 1 to 3. Output: a number. *)
let () =
  let number = ref 1 in
  for _ = 1 to 300 do
    number := Ma.work 1000000 !number;
    number := Mb.work 3000000 !number
  done;
  print_int !number
