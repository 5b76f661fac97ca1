%% Calls ma's and mb's work 300 times, with steps of 1 to 3. Output: a number.
-module(main).
-export([start/0]).

start() -> io:format("~p~n", [turn(300, 1)]), halt().

turn(0, Number) -> Number;
turn(Left, Number) -> turn(Left - 1, mb:work(600000, ma:work(200000, Number))).
