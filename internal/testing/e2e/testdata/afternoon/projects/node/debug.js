console.log(require('./basket').total(require('prices')))
