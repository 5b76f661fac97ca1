<?php
// A class M@ whose work burns CPU time: @ is a or b. Steps -> a number.
class M@
{
    public static function work($steps, $number)
    {
        for ($i = 1; $i <= $steps; $i++) {
            $number = (($number * 31 + $i) ^ ($number >> 7)) & 0xffffff;
        }
        return $number;
    }
}
