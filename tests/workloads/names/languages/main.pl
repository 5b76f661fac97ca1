# Burns CPU time in a function. Output: a number.
sub work {
    my ($steps, $number) = @_;
    for my $i (1 .. $steps) { $number = (($number * 31 + $i) ^ ($number >> 7)) & 0xffffff }
    return $number;
}
print work(5000000, 1), "\n";
