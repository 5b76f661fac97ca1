;; Burns CPU time in a function. Output: a number.
(defun work (steps number)
  (declare (fixnum steps number))
  (loop for i fixnum from 1 to steps
        do (setf number (logand (logxor (+ (* number 31) i) (ash number -7)) #xffffff)))
  number)
(print (work 300000000 1))
