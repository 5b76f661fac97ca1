! A module m@ whose work burns CPU time: @ is a or b. Steps -> a number.
module m@
contains
    subroutine work(steps, number)
        integer(8), intent(in) :: steps
        integer(8), intent(inout) :: number
        integer(8) :: i
        do i = 1, steps
            number = ieor(number * 31_8 + i, ishft(number, -7))
        end do
    end subroutine
end module
