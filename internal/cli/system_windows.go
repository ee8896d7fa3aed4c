package cli

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/term"
)

// sigResized stands for a change of the console's size, of which Windows sends no signal.
const sigResized = syscall.Signal(28)

// notifyResized looks at the console's size, and sends sigResized to signals after a change, until
// the returned function is called.
func notifyResized(signals chan<- os.Signal) func() {
	done := make(chan struct{})
	go func() {
		look := time.NewTicker(500 * time.Millisecond)
		defer look.Stop()
		size := func() [2]int {
			cols, rows, _ := term.GetSize(int(os.Stdout.Fd()))
			return [2]int{cols, rows}
		}
		for known := size(); ; {
			select {
			case <-done:
				return
			case <-look.C:
			}
			if now := size(); now != known {
				select {
				case signals <- sigResized:
					known = now
				default: // the next look
				}
			}
		}
	}()
	return func() { close(done) }
}

// opener is the command that opens an address in the user's browser. The address passes no shell.
func opener(ctx context.Context, url string) *exec.Cmd {
	return exec.CommandContext(ctx, "rundll32", "url.dll,FileProtocolHandler", url)
}

// keepPrivate lets only the user who runs the program use the file. What the folder allows others
// does not apply to it.
func keepPrivate(file string) error {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return err
	}
	only, err := windows.ACLFromEntries([]windows.EXPLICIT_ACCESS{{
		AccessPermissions: windows.GENERIC_ALL,
		AccessMode:        windows.GRANT_ACCESS,
		Trustee: windows.TRUSTEE{
			TrusteeForm: windows.TRUSTEE_IS_SID, TrusteeType: windows.TRUSTEE_IS_USER,
			TrusteeValue: windows.TrusteeValueFromSID(user.User.Sid),
		},
	}}, nil)
	if err != nil {
		return err
	}
	return windows.SetNamedSecurityInfo(file, windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, only, nil)
}

// quotedProgram quotes the path of a program for the command line of a ProxyCommand.
func quotedProgram(path string) string { return `"` + path + `"` }
