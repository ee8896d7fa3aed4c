package workspace

// ErrorReason is why a workspace is in ERROR, or why its last attempt failed.
type ErrorReason string

const (
	ErrTimeout          ErrorReason = "Timeout"
	ErrRetryExceeded    ErrorReason = "RetryExceeded"
	ErrActionFailed     ErrorReason = "ActionFailed"
	ErrDataLost         ErrorReason = "DataLost"
	ErrImagePullFailed  ErrorReason = "ImagePullFailed"
	ErrImagePullTooSlow ErrorReason = "ImagePullTooSlow"
	// ErrImageNotAllowed: the server's settings do not allow the image.
	ErrImageNotAllowed        ErrorReason = "ImageNotAllowed"
	ErrContainerWithoutVolume ErrorReason = "ContainerWithoutVolume"
	ErrArchiveCorrupted       ErrorReason = "ArchiveCorrupted"
	// ErrUnrestorable: the home holds what no restore could make again, so it is
	// not archived. It stays live; the message names the entry.
	ErrUnrestorable ErrorReason = "Unrestorable"
)

// ErrorReasons lists every reason.
func ErrorReasons() []ErrorReason {
	return []ErrorReason{ErrTimeout, ErrRetryExceeded, ErrActionFailed, ErrDataLost, ErrImagePullFailed, ErrImagePullTooSlow,
		ErrImageNotAllowed, ErrContainerWithoutVolume, ErrArchiveCorrupted, ErrUnrestorable}
}

// Final reports whether the reason, once recorded, puts the workspace in
// ERROR. ActionFailed is retried; Unrestorable is not, but prevents only
// archiving.
func (r ErrorReason) Final() bool {
	switch r {
	case "", ErrActionFailed, ErrUnrestorable:
		return false
	}
	return true
}

// IsRaw reports whether a message about the reason may have an error of Docker, Kubernetes, DNS or the
// archive storage in their words, which are for administrators.
func (r ErrorReason) IsRaw() bool {
	switch r {
	case ErrTimeout, ErrRetryExceeded, ErrActionFailed, ErrImagePullFailed:
		return true
	}
	return false
}

// MaxAttempts is how often an operation may fail before RetryExceeded.
const MaxAttempts = 3
