! Calls ma's and mb's work 300 times, with steps of 1 to 3. Output: a number.
program main
    use ma, only: work_a => work
    use mb, only: work_b => work
    integer(8) :: number, turn
    number = 1
    do turn = 1, 300
        call work_a(1000000_8, number)
        call work_b(3000000_8, number)
    end do
    print *, number
end program
