<?php
// Calls Ma's and Mb's work 300 times, with steps of 1 to 3. Output: a number.
require 'ma.php';
require 'mb.php';
$number = 1;
for ($turn = 0; $turn < 300; $turn++) {
    $number = Ma::work(100000, $number);
    $number = Mb::work(300000, $number);
}
echo "$number\n";
