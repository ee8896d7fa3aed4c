package inside

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a new terminal. It does not need /dev/pts in the
// image.
func openTerminal() (master, slave *os.File, err error) {
	// Not blocking, so that Go can set deadlines.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("unlock the terminal: %w", err)
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, fmt.Errorf("open the terminal's other end: %w", errno)
	}
	return master, os.NewFile(n, "/dev/tty"), nil
}

// resize sets a terminal's size.
func resize(terminal *os.File, rows, cols uint16) error {
	return control(terminal, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// control calls f with the file's descriptor, which stays as it is: File.Fd would make
// it blocking.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var out error
	if err := raw.Control(func(fd uintptr) { out = f(int(fd)) }); err != nil {
		return err
	}
	return out
}

// The opcodes of RFC 4254, section 8, and what they set.
var (
	characters = map[uint8]int{
		1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL, 7: unix.VEOL2,
		8: unix.VSTART, 9: unix.VSTOP, 10: unix.VSUSP, 12: unix.VREPRINT, 13: unix.VWERASE, 14: unix.VLNEXT, 18: unix.VDISCARD,
	}
	inputFlags = map[uint8]uint32{
		30: unix.IGNPAR, 31: unix.PARMRK, 32: unix.INPCK, 33: unix.ISTRIP, 34: unix.INLCR, 35: unix.IGNCR, 36: unix.ICRNL,
		37: unix.IUCLC, 38: unix.IXON, 39: unix.IXANY, 40: unix.IXOFF, 41: unix.IMAXBEL, 42: unix.IUTF8,
	}
	localFlags = map[uint8]uint32{
		50: unix.ISIG, 51: unix.ICANON, 52: unix.XCASE, 53: unix.ECHO, 54: unix.ECHOE, 55: unix.ECHOK, 56: unix.ECHONL,
		57: unix.NOFLSH, 58: unix.TOSTOP, 59: unix.IEXTEN, 60: unix.ECHOCTL, 61: unix.ECHOKE, 62: unix.PENDIN,
	}
	outputFlags = map[uint8]uint32{
		70: unix.OPOST, 71: unix.OLCUC, 72: unix.ONLCR, 73: unix.OCRNL, 74: unix.ONOCR, 75: unix.ONLRET,
	}
)

// setModes sets a terminal's modes. It does not change a mode that is not in modes, with one
// exception: it turns UTF-8 on unless modes turns it off.
func setModes(terminal *os.File, modes map[uint8]uint32) error {
	return control(terminal, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return fmt.Errorf("read the terminal's modes: %w", err)
		}
		t.Iflag |= unix.IUTF8
		set := func(word *uint32, flags map[uint8]uint32, op uint8, value uint32) {
			if bit, ok := flags[op]; ok {
				if *word &^= bit; value != 0 {
					*word |= bit
				}
			}
		}
		for op, value := range modes {
			if i, ok := characters[op]; ok {
				if value == 255 {
					value = 0 // none
				}
				t.Cc[i] = byte(value)
			}
			set(&t.Iflag, inputFlags, op, value)
			set(&t.Lflag, localFlags, op, value)
			set(&t.Oflag, outputFlags, op, value)
		}
		if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
			return fmt.Errorf("set the terminal's modes: %w", err)
		}
		return nil
	})
}
