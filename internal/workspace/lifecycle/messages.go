package lifecycle

import "strings"

// The sentences that lifecycle writes into conditions and error messages. Pages
// translate them, so each is a constant and is listed in Messages.
const (
	msgVolumeMissing   = "The home volume %s is missing."
	msgVolumeReplaced  = "The home volume %s was replaced by another volume."
	msgVolumePartial   = "The home volume %s is incomplete because its removal had begun."
	msgVolumeLost      = "The persistent volume of this home is gone."
	msgArchiveMissing  = "The archive %s is missing."
	msgArchiveDamaged  = "The archive %s is damaged."
	msgEarlierMissing  = "The earlier archive %s is missing as well."
	msgEarlierDamaged  = "The earlier archive %s is damaged as well."
	msgBackupMissing   = "The backup is missing, so the home stays as it was."
	msgBackupDamaged   = "The backup is damaged, so the home stays as it was."
	msgVolumeKept      = "The home volume %s still exists and is complete. Recover the workspace to use it."
	msgRunsWithoutHome = "The container is running, but its home volume is missing."
	msgHomeGoes        = "The home volume %s is being removed and goes once the container ends. The files are still there until then: copy them out, and stop the workspace afterwards."
	msgHomeRemoved     = "The home of the running container is being removed."
	msgForeignVolume   = "Another volume has the name of this home."
	msgUnownedVolume   = "A volume has the name of this home, but the workspace has no home."
	msgSetAside        = "To free the name of the volume and keep its content under another name, set the volume aside."
	msgAsideFailed     = "Setting the volume aside failed:"
	msgLate            = "%s did not finish in time."
)

// Messages lists the sentences of conditions and error messages, with %s for names.
func Messages() []string {
	return []string{
		msgVolumeMissing, msgVolumeReplaced, msgVolumePartial, msgVolumeLost, msgArchiveMissing, msgArchiveDamaged, msgEarlierMissing,
		msgEarlierDamaged, msgBackupMissing, msgBackupDamaged, msgVolumeKept, msgRunsWithoutHome, msgHomeGoes, msgHomeRemoved, msgForeignVolume, msgUnownedVolume,
		msgSetAside, msgAsideFailed, msgLate,
	}
}

// sentences joins messages. Messages from outside may lack a full stop.
func sentences(messages ...string) string {
	var out []string
	for i, m := range messages {
		if m == "" {
			continue
		}
		if i < len(messages)-1 && !strings.HasSuffix(m, ".") {
			m += "."
		}
		out = append(out, m)
	}
	return strings.Join(out, " ")
}
