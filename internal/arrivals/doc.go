// Package arrivals takes up users and workspaces that this database did not make
// (`codehub import`): those of another installation (package move), of codehub's first version
// (package importm1), and archives in the bucket without a row (package adopt).
//
// A workspace arrives as an archive. Its source stores it in this installation's bucket as a new
// generation, and it is read back; archives that are in the bucket stay as they are. If the source
// still has what was stored, one transaction records the workspace, its archive and its owner. Only
// after that the source removes anything.
//
// Each step can be interrupted and repeated: an archive that was not recorded is removed and stored
// again, and a workspace that was recorded is never changed again.
package arrivals
