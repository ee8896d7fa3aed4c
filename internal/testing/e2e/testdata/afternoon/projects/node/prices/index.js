module.exports = [250, 199, 51]
