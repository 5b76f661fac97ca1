%% A module m@ whose work burns CPU time: @ is a or b. Steps -> a number.
-module(m@).
-export([work/2]).

work(0, Number) -> Number;
work(Steps, Number) -> work(Steps - 1, ((Number * 31 + Steps) bxor (Number bsr 7)) band 16#ffffff).
