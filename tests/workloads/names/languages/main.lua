-- Burns CPU time in a function. Output: a number.
local function work(steps, number)
    for i = 1, steps do number = (number * 31 + i) % 16777213 end
    return number
end
print(work(jit and 200000000 or 30000000, 1))
